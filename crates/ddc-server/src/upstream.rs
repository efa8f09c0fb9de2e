//! Another cache that this one fills itself from.
//!
//! Whatever speaks the Cloud DDC interface can be one. It is only read: what is uploaded here stays
//! here.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Body as _;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode};
use throng_ddc::api::{Media, RefName};
use throng_ddc::{IoHash, Namespace};
use throng_ddc_store::{Clock, Incoming, SystemClock};
use throng_platform::HttpClient;

use crate::headers::IO_HASH;

/// Things that were not there and are remembered as such; when there are more, all that is
/// forgotten.
const MISSES_MAX: usize = 1 << 16;
/// An upstream that failed is left alone for this long, so that no request waits for what others
/// waited for in vain.
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
    /// Paths that were not there, and until when on the clock that is believed.
    misses: Mutex<HashMap<String, Duration>>,
    /// Until when on the clock it is left alone.
    rests_until: Mutex<Option<Duration>>,
    pub(crate) failures: AtomicU64,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A blob that another cache holds for a content id.
pub(crate) enum Form {
    /// A compressed buffer.
    Compressed(Incoming),
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
            misses: Mutex::default(),
            rests_until: Mutex::default(),
            failures: AtomicU64::new(0),
        }
    }

    pub(crate) async fn blob(&self, namespace: &Namespace, hash: &IoHash) -> Option<Incoming> {
        let found = self.get(format!("/api/v1/blobs/{namespace}/{hash}"), Media::Octets.name()).await;
        found.ok().map(Response::into_body)
    }

    pub(crate) async fn form(&self, namespace: &Namespace, id: &IoHash) -> Option<Form> {
        let response = self.get(format!("/api/v1/compressed-blobs/{namespace}/{id}"), "*/*").await.ok()?;
        match media_of(&response) {
            Some(Media::Compressed) => Some(Form::Compressed(response.into_body())),
            Some(Media::Octets) => Some(Form::Raw(response.into_body())),
            _ => None,
        }
    }

    /// The object of a finalised ref, checked against the hash that came with it.
    pub(crate) async fn reference(&self, name: &RefName, bytes_max: u64) -> Lookup {
        let RefName { namespace, bucket, key } = name;
        let path = format!("/api/v1/refs/{namespace}/{}/{}", bucket.as_str(), key.as_str());
        match self.get(path, Media::CompactBinary.name()).await {
            Ok(response) => match self.object(response, bytes_max).await {
                Some(object) => Lookup::Found(object),
                None => Lookup::Unknown,
            },
            Err(Absence::Missing) => Lookup::Missing,
            Err(Absence::Silent) => Lookup::Unknown,
        }
    }

    async fn object(&self, response: Response<Incoming>, bytes_max: u64) -> Option<(IoHash, Bytes)> {
        let claimed = response.headers().get(IO_HASH)?.to_str().ok()?.parse::<IoHash>().ok()?;
        if media_of(&response) != Some(Media::CompactBinary) {
            return None;
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
        match tokio::time::timeout(self.timeout, body).await {
            Ok(Ok(bytes)) => (IoHash::of(&bytes) == claimed).then_some((claimed, bytes)),
            Ok(Err(error)) => self.failed(&error),
            Err(error) => self.failed(&error),
        }
    }

    /// Asks the upstream. One that cannot be reached has nothing.
    async fn get(&self, path: String, accept: &'static str) -> Result<Response<Incoming>, Absence> {
        let silent = |why: &dyn fmt::Display| {
            self.failed::<()>(why);
            Absence::Silent
        };
        let now = self.clock.elapsed();
        if self.is_missing(&path, now) {
            return Err(Absence::Missing);
        }
        if self.rests_until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until) {
            return Err(Absence::Silent);
        }
        let mut request = Request::get(format!("{}{path}", self.url)).header(header::ACCEPT, accept);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = match request.body(Empty::new()) {
            Ok(request) => request,
            Err(error) => return Err(silent(&error)),
        };
        let response = match (self.transport)(request).await {
            Ok(response) => response,
            Err(error) => return Err(silent(&error)),
        };
        match response.status() {
            StatusCode::OK => Ok(response),
            // The ref is not finalised, or the cache knows no such thing.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => {
                let mut misses = self.misses.lock().unwrap_or_else(PoisonError::into_inner);
                if misses.len() >= MISSES_MAX {
                    misses.clear();
                }
                misses.insert(path, now + self.miss);
                Err(Absence::Missing)
            }
            status => Err(silent(&format!("status {status}"))),
        }
    }

    fn is_missing(&self, path: &str, now: Duration) -> bool {
        let misses = self.misses.lock().unwrap_or_else(PoisonError::into_inner);
        misses.get(path).is_some_and(|until| now < *until)
    }

    pub(crate) fn failed<T>(&self, why: &dyn fmt::Display) -> Option<T> {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.elapsed();
        let mut rests = self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        // Once per rest, whatever happens.
        if rests.is_none_or(|old| old < now) {
            tracing::warn!(url = self.url, %why, "the upstream cache does not answer; what is not here is a miss");
        }
        *rests = Some(now + REST);
        None
    }
}

fn media_of(response: &Response<Incoming>) -> Option<Media> {
    Media::parse(response.headers().get(header::CONTENT_TYPE)?.to_str().ok()?)
}
