//! Another cache that this one fills itself from.
//!
//! Any cache that speaks the Cloud DDC interface can be one. It is only read: uploads to this cache
//! stay in it.
//!
//! The upstream is judged by its answers alone. [`FAILURES_IN_A_ROW`] requests in a row without one
//! (no connection, a timeout, a status of 500 or above, 429) let it rest for [`REST`]; any other
//! answer ends the row. A body that breaks off, stalls or is something else than its name says
//! counts against its path, which is a miss for as long.

use std::collections::HashMap;
use std::fmt;
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
use throng_ddc::{IoHash, Namespace};
use throng_ddc_store::{Clock, Incoming, SystemClock};
use throng_platform::HttpClient;

use crate::headers::IO_HASH;

/// Things that were not there and are remembered as such; when there are more, all that is
/// forgotten.
const MISSES_MAX: usize = 1 << 16;
/// Requests in a row without an answer after which the upstream rests.
const FAILURES_IN_A_ROW: u32 = 3;
/// An upstream that does not answer, and a path whose body failed, is left alone for this long, so
/// that no request waits for what others waited for in vain.
const REST: Duration = Duration::from_secs(1);

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
    health: Mutex<Health>,
    pub(crate) failures: AtomicU64,
}

/// State of the upstream, in time on the clock.
#[derive(Debug, Default)]
struct Health {
    /// Requests without an answer since the last one with an answer.
    row: u32,
    /// It is left alone until then.
    rests_until: Duration,
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
        let (web, timeout) = (HttpClient::new(&options.tls), options.timeout);
        let transport: Transport = Box::new(move |request| {
            let web = web.clone();
            Box::pin(async move {
                let response = web.send(request, timeout).await.map_err(io::Error::other)?;
                Ok(response.map(|body| {
                    let len = body.size_hint().exact().unwrap_or(0);
                    Incoming { len, bytes: body.into_data_stream().map_err(io::Error::other).boxed() }
                }))
            })
        });
        Upstream {
            url: options.url.trim_end_matches('/').to_owned(),
            authorization: options.authorization,
            timeout,
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
            health: Mutex::default(),
            failures: AtomicU64::new(0),
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
        let mut pieces = response.into_body().bytes;
        let body = async {
            let mut bytes = BytesMut::new();
            while let Some(piece) = pieces.try_next().await? {
                bytes.extend_from_slice(&piece);
                if bytes.len() as u64 > bytes_max {
                    return Err(io::Error::other("the object of a ref is too large"));
                }
            }
            Ok(bytes.freeze())
        };
        let body = tokio::time::timeout(self.timeout, body).await.map_err(|error| error.to_string())?;
        let bytes = body.map_err(|error| error.to_string())?;
        match IoHash::of(&bytes) == claimed {
            true => Ok((claimed, bytes)),
            false => Err("the object of a ref has another hash than it came with".to_owned()),
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
        if self.is_failed(&path, now) || now < self.health().rests_until {
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
        let response = match (self.transport)(request).await {
            Ok(response) => response,
            Err(error) => return Err(silent(&error, false)),
        };
        let status = response.status();
        let is_answer = !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS;
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
            if health.row >= FAILURES_IN_A_ROW {
                health.rests_until = now + REST;
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

    use super::*;

    /// A clock that stands still, so that nothing rests for less than the test.
    #[derive(Debug)]
    struct Still;

    impl Clock for Still {
        fn sleep(&self, _: Duration) {}

        fn now(&self) -> Timestamp {
            Timestamp::from_unix_ms(0)
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(5)
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
        Upstream::over(transport, Arc::new(Still), Duration::ZERO)
    }

    #[test]
    fn the_upstream_rests_after_failures_in_a_row_and_after_no_others() {
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
