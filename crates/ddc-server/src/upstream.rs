//! Another cache that this one fills itself from.
//!
//! Whatever speaks the Cloud DDC interface can be one. It is only read: what is uploaded here stays
//! here.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode};
use throng_ddc::api::{Media, RefName};
use throng_ddc::{IoHash, Namespace};
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

/// The client of another cache.
pub struct Upstream {
    options: UpstreamOptions,
    web: HttpClient<Empty<Bytes>>,
    /// Paths that were not there, and until when that is believed.
    misses: Mutex<HashMap<String, Instant>>,
    /// Until when it is left alone.
    rests_until: Mutex<Option<Instant>>,
    pub(crate) failures: AtomicU64,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("url", &self.options.url).finish_non_exhaustive()
    }
}

/// A blob that another cache holds for a content id.
pub(crate) enum Form {
    /// A compressed buffer.
    Compressed(Response<hyper::body::Incoming>),
    /// The bytes themselves.
    Raw(Response<hyper::body::Incoming>),
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
        Upstream {
            options,
            web,
            misses: Mutex::default(),
            rests_until: Mutex::default(),
            failures: AtomicU64::new(0),
        }
    }

    pub(crate) async fn blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Option<Response<hyper::body::Incoming>> {
        self.get(format!("/api/v1/blobs/{namespace}/{hash}"), Media::Octets.name()).await
    }

    pub(crate) async fn form(&self, namespace: &Namespace, id: &IoHash) -> Option<Form> {
        let response = self.get(format!("/api/v1/compressed-blobs/{namespace}/{id}"), "*/*").await?;
        match media_of(&response) {
            Some(Media::Compressed) => Some(Form::Compressed(response)),
            Some(Media::Octets) => Some(Form::Raw(response)),
            _ => None,
        }
    }

    /// The object of a finalised ref, checked against the hash that came with it.
    pub(crate) async fn reference(&self, name: &RefName, bytes_max: u64) -> Lookup {
        let RefName { namespace, bucket, key } = name;
        let path = format!("/api/v1/refs/{namespace}/{}/{}", bucket.as_str(), key.as_str());
        let found = self.get(path.clone(), Media::CompactBinary.name()).await;
        match found {
            Some(response) => match self.object(response, bytes_max).await {
                Some(object) => Lookup::Found(object),
                None => Lookup::Unknown,
            },
            None if self.is_missing(&path, Instant::now()) => Lookup::Missing,
            None => Lookup::Unknown,
        }
    }

    async fn object(
        &self,
        response: Response<hyper::body::Incoming>,
        bytes_max: u64,
    ) -> Option<(IoHash, Bytes)> {
        let claimed = response.headers().get(IO_HASH)?.to_str().ok()?.parse::<IoHash>().ok()?;
        if media_of(&response) != Some(Media::CompactBinary) {
            return None;
        }
        let limit = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let body = Limited::new(response.into_body(), limit).collect();
        match tokio::time::timeout(self.options.timeout, body).await {
            Ok(Ok(body)) => {
                let bytes = body.to_bytes();
                (IoHash::of(&bytes) == claimed).then_some((claimed, bytes))
            }
            Ok(Err(error)) => self.failed(&error),
            Err(error) => self.failed(&error),
        }
    }

    /// `None` if it is not there, or nobody can say: a cache that cannot be reached has nothing.
    async fn get(&self, path: String, accept: &'static str) -> Option<Response<hyper::body::Incoming>> {
        let now = Instant::now();
        if self.is_missing(&path, now) {
            return None;
        }
        if self.rests_until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until) {
            return None;
        }
        let mut request = Request::get(format!("{}{path}", self.options.url.trim_end_matches('/')))
            .header(header::ACCEPT, accept);
        if let Some(authorization) = &self.options.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = match request.body(Empty::new()) {
            Ok(request) => request,
            Err(error) => return self.failed(&error),
        };
        let response = match self.web.send(request, self.options.timeout).await {
            Ok(response) => response,
            Err(error) => return self.failed(&error),
        };
        match response.status() {
            StatusCode::OK => Some(response),
            // The ref is not finalised, or the cache knows no such thing.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => {
                let mut misses = self.misses.lock().unwrap_or_else(PoisonError::into_inner);
                if misses.len() >= MISSES_MAX {
                    misses.clear();
                }
                misses.insert(path, now + self.options.miss);
                None
            }
            status => self.failed(&format!("status {status}")),
        }
    }

    fn is_missing(&self, path: &str, now: Instant) -> bool {
        let misses = self.misses.lock().unwrap_or_else(PoisonError::into_inner);
        misses.get(path).is_some_and(|until| now < *until)
    }

    fn failed<T>(&self, why: &dyn fmt::Display) -> Option<T> {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let until = Instant::now() + REST;
        let mut rests = self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        // Once per rest, whatever happens.
        if rests.is_none_or(|old| old < Instant::now()) {
            tracing::warn!(url = self.options.url, %why, "the upstream cache does not answer; what is not here is a miss");
        }
        *rests = Some(until);
        None
    }
}

fn media_of(response: &Response<hyper::body::Incoming>) -> Option<Media> {
    Media::parse(response.headers().get(header::CONTENT_TYPE)?.to_str().ok()?)
}
