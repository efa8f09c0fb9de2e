//! Another cache that this one fills itself from.
//!
//! Any cache that speaks the Cloud DDC interface can be one. It is only read: uploads to this cache
//! stay in it.
//!
//! The upstream is judged by its answers alone. After [`FAILURES_IN_A_ROW`] requests in a row
//! without one (no connection, a timeout, a status of 500 or above, 429) it counts as silent, and
//! no request waits for it. One of them at a time is sent as a probe in the background; the pause
//! between probes grows from [`REST`] to [`PROBE_PAUSE_MAX`]. Any other answer
//! ends that. A body that breaks off, stalls or is something else than its name says counts
//! against its path, which is a miss for [`REST`].

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Body as _;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use throng_ddc::api::{Media, RefName};
use throng_ddc::{Document, IoHash, Namespace};
use throng_ddc_store::{Clock, Incoming, SystemClock};
use throng_platform::HttpClient;
use tokio::time::Timeout;

use crate::headers::IO_HASH;
use crate::source::{FetchedBody, Source as _};

/// Things that were not there and are remembered as such; when there are more, all that is
/// forgotten.
const MISSES_MAX: usize = 1 << 16;
/// Requests in a row without an answer after which the upstream counts as silent.
const FAILURES_IN_A_ROW: u32 = 3;
/// Pause before the first probe of a silent upstream. A path whose body failed is left alone for as
/// long.
const REST: Duration = Duration::from_secs(1);
/// Longest pause between two probes.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Where the other cache is and how it is asked.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// `http://HOST[:PORT]` or `https://HOST[:PORT]`, without a path.
    pub url: String,
    /// The `Authorization` header to send.
    pub authorization: Option<HeaderValue>,
    /// Time within which an answer must begin.
    pub timeout: Duration,
    /// How long something that was not there is not asked for again.
    pub miss: Duration,
    /// Whom TLS trusts.
    pub tls: Arc<rustls::ClientConfig>,
}

tokio::task_local! {
    /// Way of the request that this task answers.
    static WAY: Way;
}

/// Way of a request that came through other caches.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Through these, none of which is this one.
    Through(HeaderValue),
    /// Through this one: it waits for the answer itself.
    Back,
}

/// Does something for a request that came this way.
pub(crate) async fn for_request<F: Future>(way: Option<Way>, work: F) -> F::Output {
    match way {
        Some(way) => WAY.scope(way, work).await,
        None => work.await,
    }
}

/// Way of the request of this task, if it came through other caches.
pub(crate) fn way() -> Option<Way> {
    WAY.try_with(Way::clone).ok()
}

/// Reports whether the request of this task came back to the cache that sent it.
pub(crate) fn came_back() -> bool {
    WAY.try_with(|way| matches!(way, Way::Back)).unwrap_or(false)
}

/// Sends a request to another cache and gives its answer, whose body may still be on its way.
pub type Transport =
    Box<dyn Fn(Request<Empty<Bytes>>) -> BoxFuture<'static, io::Result<Response<Incoming>>> + Send + Sync>;

/// The client of another cache.
pub struct Upstream {
    url: String,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    miss: Duration,
    transport: Transport,
    clock: Arc<dyn Clock>,
    /// Name of this cache among those that a request came through.
    own_name: String,
    /// Paths that were not there, and until when on the clock that is believed.
    misses: Remembered,
    /// Paths whose body failed, and until when on the clock they are left alone.
    failed_bodies: Remembered,
    health: Arc<Mutex<Health>>,
    pub(crate) failures: Arc<AtomicU64>,
}

/// State of the upstream, in time on the clock.
#[derive(Debug, Default)]
struct Health {
    /// Requests without an answer since the last one with an answer.
    row: u32,
    /// The next probe of a silent upstream begins then or later.
    probe_at: Duration,
    /// Pause after the next probe, if that fails.
    pause: Duration,
    /// A probe is on its way.
    is_probed: bool,
    /// The next failure is logged after that.
    quiet_until: Duration,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A blob that another cache holds for a content id.
pub(crate) enum Form {
    /// A compressed buffer, and its hash as the answer's head says it.
    Compressed(Incoming, Option<IoHash>),
    /// The bytes themselves.
    Raw(Incoming),
}

/// Why the upstream gives nothing.
enum Absence {
    /// It says that it has no such thing.
    Missing,
    /// It does not answer.
    Silent,
}

/// Answer of the upstream about a ref.
pub(crate) enum Lookup {
    /// Its object, and the object's hash.
    Found((IoHash, Bytes)),
    /// It has none.
    Missing,
    /// It does not answer.
    Unknown,
}

impl Upstream {
    /// A client. Asks nothing yet.
    #[must_use]
    pub fn new(options: UpstreamOptions) -> Upstream {
        let web = HttpClient::new(&options.tls);
        let transport: Transport = Box::new(move |request| {
            let web = web.clone();
            Box::pin(async move {
                let response = web.send(request, Duration::MAX).await.map_err(io::Error::other)?;
                Ok(response.map(|body| {
                    let len = body.size_hint().exact().unwrap_or(0);
                    Incoming { len, bytes: body.into_data_stream().map_err(io::Error::other).boxed() }
                }))
            })
        });
        Upstream {
            url: options.url.trim_end_matches('/').to_owned(),
            authorization: options.authorization,
            timeout: options.timeout,
            ..Upstream::over(transport, Arc::new(SystemClock::new()), options.miss)
        }
    }

    /// A client with a transport and a clock of the caller's, for simulations.
    #[must_use]
    pub fn over(transport: Transport, clock: Arc<dyn Clock>, miss: Duration) -> Upstream {
        Upstream {
            url: "http://localhost".to_owned(),
            authorization: None,
            timeout: Duration::MAX,
            miss,
            transport,
            clock,
            own_name: format!("throng-{:016x}", RandomState::new().hash_one(0)),
            misses: Mutex::default(),
            failed_bodies: Mutex::default(),
            health: Arc::default(),
            failures: Arc::default(),
        }
    }

    /// Way of a request, if it came through other caches.
    pub(crate) fn way_of(&self, headers: &HeaderMap) -> Option<Way> {
        if !headers.contains_key(header::VIA) {
            return None;
        }
        let vias: Vec<&[u8]> = headers.get_all(header::VIA).iter().map(HeaderValue::as_bytes).collect();
        let vias = vias.join(&b", "[..]);
        let own_name = self.own_name.as_bytes();
        match vias.windows(own_name.len()).any(|window| window == own_name) {
            true => Some(Way::Back),
            false => HeaderValue::from_bytes(&vias).ok().map(Way::Through),
        }
    }

    /// The same for requests to the upstream.
    fn goes_through(&self) -> Vec<u8> {
        let own = format!("1.1 {}", self.own_name).into_bytes();
        match way() {
            Some(Way::Through(caches)) => [caches.as_bytes(), b", ", &own].concat(),
            Some(Way::Back) | None => own,
        }
    }

    pub(crate) async fn blob(&self, namespace: &Namespace, hash: &IoHash) -> Option<Incoming> {
        let found = self.get(blob_path(namespace, hash), Media::Octets.name()).await;
        found.ok().map(Response::into_body)
    }

    /// The body of a blob failed, and why.
    pub(crate) fn blob_failed(&self, namespace: &Namespace, hash: &IoHash, why: &dyn fmt::Display) {
        self.body_failed(blob_path(namespace, hash), why);
    }

    /// The body of a form failed, and why.
    pub(crate) fn form_failed(&self, namespace: &Namespace, id: &IoHash, why: &dyn fmt::Display) {
        self.body_failed(form_path(namespace, id), why);
    }

    pub(crate) async fn form(&self, namespace: &Namespace, id: &IoHash) -> Option<Form> {
        let response = self.get(form_path(namespace, id), "*/*").await.ok()?;
        match media_of(&response) {
            Some(Media::Compressed) => {
                let hash = hash_of(&response);
                Some(Form::Compressed(response.into_body(), hash))
            }
            Some(Media::Octets) => Some(Form::Raw(response.into_body())),
            _ => None,
        }
    }

    /// The object of a finalised ref, checked against the hash that came with it.
    pub(crate) async fn reference(&self, name: &RefName, bytes_max: u64) -> Lookup {
        let RefName { namespace, bucket, key } = name;
        let path = format!("/api/v1/refs/{namespace}/{}/{}", bucket.as_str(), key.as_str());
        match self.get(path.clone(), Media::CompactBinary.name()).await {
            Ok(response) => match self.object(response, bytes_max).await {
                Ok(object) => Lookup::Found(object),
                Err(why) => {
                    self.body_failed(path, &why);
                    Lookup::Unknown
                }
            },
            Err(Absence::Missing) => Lookup::Missing,
            Err(Absence::Silent) => Lookup::Unknown,
        }
    }

    /// The object of an answer, or what is wrong with it.
    async fn object(&self, response: Response<Incoming>, bytes_max: u64) -> Result<(IoHash, Bytes), String> {
        let claimed = hash_of(&response).ok_or("a ref without the hash of its object")?;
        if media_of(&response) != Some(Media::CompactBinary) {
            return Err("a ref in another form than was asked for".to_owned());
        }
        let mut body = FetchedBody::new(response.into_body());
        let mut bytes = BytesMut::new();
        while let Some(piece) =
            poll_fn(|context| body.poll_piece(context)).await.map_err(|why| why.to_string())?
        {
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 > bytes_max {
                return Err("the object of a ref is too large".to_owned());
            }
        }
        let bytes = bytes.freeze();
        if IoHash::of(&bytes) != claimed {
            return Err("the object of a ref has another hash than it came with".to_owned());
        }
        match Document::parse(&bytes) {
            Ok(_) => Ok((claimed, bytes)),
            Err(defect) => Err(defect.to_string()),
        }
    }

    /// Asks the upstream. One that cannot be reached has nothing.
    async fn get(&self, path: String, accept: &'static str) -> Result<Response<Incoming>, Absence> {
        let silent = |why: &dyn fmt::Display, is_answer: bool| {
            self.failed(why, is_answer);
            Absence::Silent
        };
        let now = self.clock.elapsed();
        if self.is_missing(&path, now) {
            return Err(Absence::Missing);
        }
        if self.is_failed(&path, now) {
            return Err(Absence::Silent);
        }
        let mut request = Request::get(format!("{}{path}", self.url)).header(header::ACCEPT, accept);
        request = request.header(header::VIA, self.goes_through());
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = match request.body(Empty::new()) {
            Ok(request) => request,
            Err(error) => return Err(silent(&error, true)),
        };
        let is_probe = {
            let mut health = self.health();
            let is_silent = health.row >= FAILURES_IN_A_ROW;
            if is_silent && (health.is_probed || now < health.probe_at) {
                return Err(Absence::Silent);
            }
            health.is_probed |= is_silent;
            is_silent
        };
        let answer = tokio::time::timeout(self.timeout, (self.transport)(request));
        if is_probe {
            self.probe(answer);
            return Err(Absence::Silent);
        }
        let response = match answer.await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(silent(&error, false)),
            Err(_) => {
                let why = format!("no answer within {} ms", self.timeout.as_millis());
                return Err(silent(&why, false));
            }
        };
        let status = response.status();
        let is_answer = is_answer(status);
        if is_answer {
            self.health().row = 0;
        }
        match status {
            StatusCode::OK => Ok(response),
            // The ref is not finalised, or the cache knows no such thing.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => {
                remember(&self.misses, path, now + self.miss);
                Err(Absence::Missing)
            }
            status => Err(silent(&format!("status {status}"), is_answer)),
        }
    }

    /// Learns from a request whether a silent upstream answers again. Returns at once.
    fn probe(&self, answer: Timeout<BoxFuture<'static, io::Result<Response<Incoming>>>>) {
        let (health, failures) = (Arc::clone(&self.health), Arc::clone(&self.failures));
        let (clock, url) = (Arc::clone(&self.clock), self.url.clone());
        tokio::spawn(async move {
            let answered = matches!(answer.await, Ok(Ok(response)) if is_answer(response.status()));
            let mut health = health.lock().unwrap_or_else(PoisonError::into_inner);
            health.is_probed = false;
            if answered {
                health.row = 0;
                tracing::info!(url, "the upstream cache answers again");
            } else {
                failures.fetch_add(1, Ordering::Relaxed);
                health.probe_at = clock.elapsed() + health.pause;
                health.pause = (health.pause * 2).min(PROBE_PAUSE_MAX);
            }
        });
    }

    fn is_missing(&self, path: &str, now: Duration) -> bool {
        is_remembered(&self.misses, path, now)
    }

    fn is_failed(&self, path: &str, now: Duration) -> bool {
        is_remembered(&self.failed_bodies, path, now)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that brought nothing. It may have been answered.
    fn failed(&self, why: &dyn fmt::Display, is_answer: bool) {
        let now = self.clock.elapsed();
        let mut health = self.health();
        if !is_answer {
            health.row = health.row.saturating_add(1);
            if health.row == FAILURES_IN_A_ROW {
                (health.probe_at, health.pause) = (now + REST, 2 * REST);
            }
        }
        self.count_failure(
            &mut health,
            now,
            "the upstream cache does not answer; what is not here is a miss",
            why,
        );
    }

    /// Counts a body that failed, against its path alone.
    fn body_failed(&self, path: String, why: &dyn fmt::Display) {
        let now = self.clock.elapsed();
        remember(&self.failed_bodies, path, now + REST);
        self.count_failure(
            &mut self.health(),
            now,
            "an answer of the upstream cache is of no use; it is a miss",
            why,
        );
    }

    fn count_failure(&self, health: &mut Health, now: Duration, what: &str, why: &dyn fmt::Display) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        // Once per rest, whatever happens.
        if health.quiet_until <= now {
            tracing::warn!(url = self.url, %why, "{what}");
        }
        health.quiet_until = now + REST;
    }
}

/// Reports whether an upstream that says this answers.
fn is_answer(status: StatusCode) -> bool {
    !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS
}

/// Paths with the time until which something about them is known.
type Remembered = Mutex<HashMap<String, Duration>>;

fn remember(paths: &Remembered, path: String, until: Duration) {
    let mut paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
    if paths.len() >= MISSES_MAX {
        paths.clear();
    }
    paths.insert(path, until);
}

fn is_remembered(paths: &Remembered, path: &str, now: Duration) -> bool {
    let paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
    paths.get(path).is_some_and(|until| now < *until)
}

fn blob_path(namespace: &Namespace, hash: &IoHash) -> String {
    format!("/api/v1/blobs/{namespace}/{hash}")
}

fn form_path(namespace: &Namespace, id: &IoHash) -> String {
    format!("/api/v1/compressed-blobs/{namespace}/{id}")
}

/// Hash that an answer's head says.
fn hash_of(response: &Response<Incoming>) -> Option<IoHash> {
    response.headers().get(IO_HASH)?.to_str().ok()?.parse().ok()
}

fn media_of(response: &Response<Incoming>) -> Option<Media> {
    Media::parse(response.headers().get(header::CONTENT_TYPE)?.to_str().ok()?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::FutureExt as _;
    use futures_util::stream;
    use throng_ddc::Timestamp;
    use tokio::sync::oneshot;

    use super::*;

    /// A clock that tests move, in seconds.
    #[derive(Debug, Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn sleep(&self, _: Duration) {}

        fn now(&self) -> Timestamp {
            Timestamp::from_unix_ms(0)
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(self.0.load(Ordering::Relaxed))
        }
    }

    /// Status that the upstream answers with; 0 is no answer.
    fn upstream(status: &Arc<AtomicUsize>, asked: &Arc<AtomicUsize>) -> Upstream {
        let (status, asked) = (Arc::clone(status), Arc::clone(asked));
        let transport: Transport = Box::new(move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            let status = u16::try_from(status.load(Ordering::Relaxed)).expect("a status");
            let body = Incoming { len: 0, bytes: stream::empty().boxed() };
            let answer = Response::builder().status(status).body(body);
            Box::pin(async move { answer.map_err(io::Error::other) })
        });
        Upstream::over(transport, Arc::new(Hand::default()), Duration::ZERO)
    }

    #[tokio::test]
    async fn no_request_waits_for_a_silent_upstream_but_one_probe_at_a_time() {
        let answers: Arc<Mutex<Vec<oneshot::Sender<u16>>>> = Arc::default();
        let sent = Arc::clone(&answers);
        let transport: Transport = Box::new(move |_| {
            let (sender, receiver) = oneshot::channel();
            sent.lock().expect("no panic").push(sender);
            Box::pin(async move {
                let status = receiver.await.map_err(io::Error::other)?;
                let body = Incoming { len: 0, bytes: stream::empty().boxed() };
                Response::builder().status(status).body(body).map_err(io::Error::other)
            })
        });
        let clock = Arc::new(Hand::default());
        let upstream = Upstream::over(transport, Arc::clone(&clock) as Arc<dyn Clock>, Duration::ZERO);
        let namespace: Namespace = "n".parse().expect("a name");
        let hash = IoHash::of(b"wanted");
        let probes = || answers.lock().expect("no panic").len();
        // Three requests in a row get no answer.
        for _ in 0..FAILURES_IN_A_ROW {
            let (found, ()) = tokio::join!(upstream.blob(&namespace, &hash), async {
                answers.lock().expect("no panic").clear();
            });
            assert!(found.is_none());
        }
        let ask = || upstream.blob(&namespace, &hash).now_or_never();
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            clock.0.fetch_add(pause - 1, Ordering::Relaxed);
            assert!(matches!(ask(), Some(None)) && probes() == 0, "no probe before {pause} s");
            clock.0.fetch_add(1, Ordering::Relaxed);
            // Nothing waits for the probe, and it is the only one.
            for _ in 0..3 {
                assert!(matches!(ask(), Some(None)), "a request waits after {pause} s");
            }
            assert_eq!(probes(), 1, "after {pause} s");
            answers.lock().expect("no panic").clear();
            while upstream.health().is_probed {
                tokio::task::yield_now().await;
            }
        }
        clock.0.fetch_add(30, Ordering::Relaxed);
        assert!(matches!(ask(), Some(None)));
        let probe = answers.lock().expect("no panic").pop().expect("a probe");
        probe.send(404).expect("it is waited for");
        while upstream.health().is_probed {
            tokio::task::yield_now().await;
        }
        assert!(ask().is_none(), "the next request is sent and waits for its answer");
    }

    #[tokio::test]
    async fn only_the_begin_of_an_answer_has_to_be_in_time() {
        let object = Bytes::from(
            throng_ddc::Value::object([("n", throng_ddc::Value::Integer(1))])
                .encode(throng_ddc::Style::Plain),
        );
        let hash = IoHash::of(&object);
        let transport: Transport = Box::new(move |_| {
            let object = object.clone();
            let pieces = stream::iter([object.slice(..1), object.slice(1..)]).then(|piece| async move {
                // Until a timer that is due at once has fired, and with it all earlier ones.
                let _ = tokio::time::timeout(Duration::ZERO, std::future::pending::<()>()).await;
                Ok(piece)
            });
            let body = Incoming { len: object.len() as u64, bytes: pieces.boxed() };
            let response = Response::builder()
                .header(IO_HASH, hash.to_string())
                .header(header::CONTENT_TYPE, Media::CompactBinary.name());
            let answer = response.body(body).map_err(io::Error::other);
            Box::pin(async move { answer })
        });
        let upstream = Upstream::over(transport, Arc::new(Hand::default()), Duration::ZERO);
        // All that takes a moment takes too long.
        let upstream = Upstream { timeout: Duration::ZERO, ..upstream };
        let name = RefName {
            namespace: "n".parse().expect("a name"),
            bucket: "b".parse().expect("a name"),
            key: hash.to_string().parse().expect("a key"),
        };
        assert!(matches!(upstream.reference(&name, 1_000).await, Lookup::Found((found, _)) if found == hash));
    }

    #[tokio::test]
    async fn the_upstream_rests_after_failures_in_a_row_and_after_no_others() {
        let (status, asked) = (Arc::new(AtomicUsize::new(500)), Arc::new(AtomicUsize::new(0)));
        let upstream = upstream(&status, &asked);
        let namespace: Namespace = "n".parse().expect("a name");
        let ask = |at: u32| {
            let hash = IoHash::of(&at.to_le_bytes());
            let before = asked.load(Ordering::Relaxed);
            let _ = upstream.blob(&namespace, &hash).now_or_never().expect("it answers at once");
            asked.load(Ordering::Relaxed) > before
        };
        // An answer ends the row, and refusals are answers.
        for (at, code) in (0..).zip([500, 0, 200, 503, 429, 404, 403, 0, 504, 401]) {
            status.store(code, Ordering::Relaxed);
            assert!(ask(at), "{code}");
        }
        // So is a body that fails: only its path is left alone.
        let rotten = IoHash::of(b"rotten");
        status.store(200, Ordering::Relaxed);
        for _ in 0..FAILURES_IN_A_ROW {
            upstream.blob_failed(&namespace, &rotten, &"it broke off");
        }
        let before = asked.load(Ordering::Relaxed);
        assert!(upstream.blob(&namespace, &rotten).now_or_never().expect("at once").is_none());
        assert_eq!(asked.load(Ordering::Relaxed), before);
        assert!(ask(100));
        for (at, code) in (200..).zip([0, 502, 0]) {
            status.store(code, Ordering::Relaxed);
            assert!(ask(at), "{code}");
        }
        assert!(!ask(300), "it rests");
    }
}
